"""Tables 1 to 3 and figures 9 to 11 of the paper; figure 7 is `benchmarks.speed`, 8 `benchmarks.offloading`."""
