-- Sets what the places of the waiters of a client want from now on. Runs before queue_refresh.lua,
-- and removes its own argument, the first, from ARGV.
-- KEYS[4] places
-- ARGV[1] what they want, ARGV[2] the client's inbox, ARGV[3..] holder ids
local want = table.remove(ARGV, 1)
for n = 2, #ARGV do
  local place = redis.call('HGET', KEYS[4], ARGV[n])
  local seen, before, rest = string.match(place or '', '^(%d+ %d+ )(%+%d+)( .*)$')
  if seen and before ~= want then
    -- A deletion first, as in queue.lua.
    redis.call('HDEL', KEYS[4], '')
    redis.call('HSET', KEYS[4], ARGV[n], seen .. want .. rest)
  end
end

