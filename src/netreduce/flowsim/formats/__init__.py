"""Files of other simulators: read what people have, write what replays our flows elsewhere."""
