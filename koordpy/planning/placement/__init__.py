"""The exact core: placements as counts over a tree, their worth, the methods without a solver. It knows no labels."""
