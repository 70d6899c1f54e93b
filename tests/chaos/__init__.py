"""A whole system of real processes, disturbed at random while clients check every token."""
