"""The walk: a page that plays recorded runs step by step."""
