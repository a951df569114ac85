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

-- Reads the number of permits of a semaphore that are out, and their holders.
-- KEYS[1] permits, KEYS[2] fence
-- ARGV[1] the most holders to return
-- Returns {permits out, last fencing token or nil, holder id, ms until its permits end, …}. The
-- holders are sorted by the end of their permits, the first end first. Fewer are returned if their
-- ids are long: the client rejects a reply of more than 1 MiB.
read_clock()
local used, n, found = 0, 0, nil
repeat
  found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now, 'WITHSCORES', 'LIMIT', n, '1001')
  for i = 1, #found, 2 do
    if found[i] == 'out' then
      used = used - found[i + 1]
    else
      used = used - (string.match(found[i], '^(%d+) ') or 0)
    end
  end
  n = n + 1001
until #found < 2002
-- A token has at most 16 digits: 17 bytes are enough for the client to reject a longer text.
local fence = redis.pcall('GET', KEYS[2])
fence = type(fence) == 'string' and string.sub(fence, 1, 17)
local reply = {math.min(math.max(used, 0), 2 ^ 53), fence}
found = redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf', 'WITHSCORES', 'LIMIT', '0', ARGV[1])
local bytes = 0
for i = 1, #found, 2 do
  -- A foreign member can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
  local id = string.sub(found[i], 1, 1088)
  -- Besides the id: its length, the ms of 16 digits, and the marks and line ends of both.
  bytes = bytes + #id + 28
  if bytes > 1040000 then break end
  reply[#reply + 1] = id
  reply[#reply + 1] = math.min(found[i + 1] - now, 2 ^ 53)
end
return reply
