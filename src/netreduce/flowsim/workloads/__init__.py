"""Training workloads: models by their published parameter shapes, and iterations of DDP and FSDP over a network."""
