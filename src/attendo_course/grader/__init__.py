"""A check of an attention function that somebody else wrote: what fails, on which input, and what it looks like."""
