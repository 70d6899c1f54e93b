"""Tables 1 to 3 and figures 9 to 11 of the paper."""
