"""The Helm chart, as far as it can be checked without helm."""
