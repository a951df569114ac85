-- Returns the later of `till`, in ms, and the end of a key. It reads the clock after PTTL: with an
-- earlier time, a pause of the server between the two would make the end of the key too early.
local function later_end(key, till)
  local left = redis.call('PTTL', key)
  local time = redis.call('TIME')
  return math.max(till, time[1] * 1000 + math.floor(time[2] / 1000) + left)
end

