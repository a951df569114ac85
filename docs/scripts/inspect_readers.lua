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

-- Reads the holders of a read-write lock.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] readers
-- Free: nil. A writer: {value, ttl in ms or -1, last fencing token or nil}, as inspect.lua.
-- Readers: {their flag, its ttl, last fencing token or nil, holder id, ttl, ...}, in the order in
-- which their leases end. At most 10,000 readers, and fewer if their ids are long: the client
-- rejects a reply of more than 1 MiB.
local holder = redis.call('GET', KEYS[1])
if not holder then return false end
local is_shared = holder == 'leasehold:readers'
-- A foreign value can be megabytes long. No holder id is longer than this.
if #holder > 1088 then holder = string.sub(holder, 1, 1088) .. redis.sha1hex(holder) end
-- A token has at most 16 digits: 17 bytes are enough for the client to reject a longer text.
local fence = redis.pcall('GET', KEYS[2])
fence = type(fence) == 'string' and string.sub(fence, 1, 17)
local reply = {holder, redis.call('PTTL', KEYS[1]), fence}
if not is_shared then return reply end
read_clock()
local members =
  redis.call('ZRANGEBYSCORE', KEYS[3], now, '+inf', 'WITHSCORES', 'LIMIT', '0', '10000')
if #members == 0 then return false end
local bytes = 0
for n = 1, #members, 2 do
  local id = string.sub(members[n], 1, 1088)
  -- Besides the id: its length, the ttl of 16 digits, and the marks and line ends of both.
  bytes = bytes + #id + 28
  if bytes > 1040000 then break end
  reply[#reply + 1] = id
  -- Another program may have written any score; a ttl is an integer that is not negative.
  reply[#reply + 1] = math.floor(math.min(members[n + 1] - now, 9007199254740991))
end
return reply
