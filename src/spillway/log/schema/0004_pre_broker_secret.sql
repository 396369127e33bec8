-- What a broker wants to hear from those that hand their spools over to it; null: it is of a release
-- that takes none.
ALTER TABLE spillway.broker ADD COLUMN secret text;
