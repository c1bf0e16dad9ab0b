"""One module per kind of DATA, each from a source to a `Found`; none of them decodes an image file."""
