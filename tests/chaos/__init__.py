"""A whole system of real processes that is disturbed at random while clients check every token they are given."""
