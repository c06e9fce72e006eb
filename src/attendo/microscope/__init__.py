"""The attention microscope: what a model looks at, in a terminal, as a picture, and as a page that opens offline."""
