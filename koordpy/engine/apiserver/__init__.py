"""The API server: who we are, typed calls, what it serves, and whether we lead."""
