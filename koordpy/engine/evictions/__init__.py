"""From a plan with victims to their room: nominations, evictions, the wait; gangs and quotas that must give room."""
