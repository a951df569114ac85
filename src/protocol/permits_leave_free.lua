-- The fast path of queue_release.lua for a semaphore: takes back the permits of the caller if
-- nobody waits in the queue. Prepended to the functions of the queue, which Redis would otherwise
-- create in every call. Anything unusual is left to the rest of the script.
-- Permits that have ended count as held until a script removes them: nobody has got them since.
do
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- as in take_free.lua
  local found = redis.call('ZRANGE', KEYS[1], '0', '2')
  -- A damaged queue must not keep the permits from being released.
  if found[1] == 'out' and not redis.pcall('LINDEX', KEYS[3], '0') then
    if found[2] == ARGV[1] and not found[3] then
      -- No other permits are out.
      redis.call('DEL', KEYS[1])
      return 1
    end
    local k = string.match(ARGV[1], '^(%d+) ')
    if k and found[3] and redis.call('ZREM', KEYS[1], ARGV[1]) == 1 then
      -- The score is minus the number of permits that are out. Nobody keeps permits if someone else
      -- has raised it.
      if tonumber(redis.call('ZINCRBY', KEYS[1], k, 'out')) >= 0 then redis.call('DEL', KEYS[1]) end
      return 1
    end
  end
end

