"""One module a kind of DATA, each with `open_source(path) → Found`; none of them decodes an image."""
