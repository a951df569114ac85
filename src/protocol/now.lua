-- The server's clock. Prepended to the scripts of queues, and to those of readers and permits.

-- The time since 1970, in µs and in whole ms; nil until `read_clock`.
local micros, now

-- Reads the clock at its first call in a run: most releases find no waiter and need no clock.
local function read_clock()
  if now then return end
  local time = redis.call('TIME')
  micros = time[1] * 1000000 + time[2]
  now = math.floor(micros / 1000)
end

