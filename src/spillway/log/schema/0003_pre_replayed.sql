-- How far the spooled events of a source have come into a lane: written in the commit that stores
-- them, so a replay that is cut off goes on behind them. Forgotten once the file is gone.
CREATE TABLE spillway.replayed (
    lane_id bigint NOT NULL,
    source text NOT NULL, -- the name of their file
    seq bigint NOT NULL,
    PRIMARY KEY (source, lane_id)
) WITH (fillfactor = 50);

CREATE TYPE spillway.new_replayed AS (lane_id bigint, source text, seq bigint);
