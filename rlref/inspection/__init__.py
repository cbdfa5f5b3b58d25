"""`rlref inspect`: checks of an environment's interface, and statistics of a random policy in it."""
