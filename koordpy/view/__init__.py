"""A cluster as people see it: one versioned JSON, and one page that draws it."""
