-- Returns the later of `till` and the end of a key, in ms; `till` if the key has no end. The clock
-- is read after PTTL: with an earlier time, a pause of the server between the two would make the
-- result too early.
local function later_end(key, till)
  local left = redis.call('PTTL', key)
  local time = redis.call('TIME')
  return math.max(till, time[1] * 1000 + math.floor(time[2] / 1000) + left)
end

