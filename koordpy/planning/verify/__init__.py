"""An independent check of every plan: by names and labels, with no arithmetic shared with the planners."""
