-- Shared by the scripts of a queue; prepended to each of them.

-- The server's clock, in µs and in ms; nil until `read_clock`.
local micros, now

-- Reads the clock, once in each script. A release to nobody does not need it.
local function read_clock()
  if now then return end
  local time = redis.call('TIME')
  micros = time[1] * 1000000 + time[2]
  now = math.floor(micros / 1000)
end

