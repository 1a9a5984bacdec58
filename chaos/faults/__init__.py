"""What is done to the rig: one module for each kind of victim."""
