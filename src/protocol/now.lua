-- Shared by the scripts of a queue; prepended to each of them. The server's clock.
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

