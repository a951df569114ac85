-- Shows that the server accepts writes, and changes nothing: there is no such key.
-- KEYS[1] a key that no lock has
-- Replies with 0.
return redis.call('DEL', KEYS[1])
