-- When a lane was pruned last, so that the audit can tell which groups were there to be asked.
ALTER TABLE spillway.lane ADD COLUMN pruned_at timestamptz;
