"""`rlref inspect`: an environment's interface, and what a random policy meets in it."""
