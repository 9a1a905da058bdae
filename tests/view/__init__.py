"""The page and what it draws."""
