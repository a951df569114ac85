-- Goes on only if the lock before has its holder: this lock is one of several that are needed
-- together, and the caller asks for them in one order. Prepended to take_free.lua and acquire.lua,
-- which then find their own keys and arguments only.
-- KEYS[3] the lock before, ARGV[3] its holder id
-- Skipped: 0. Then a command before it was refused, has failed, or was undone.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then return 0 end
KEYS[3], ARGV[3] = nil, nil

