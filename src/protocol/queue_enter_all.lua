-- Acquires all of several locks for a set, or joins the queue of the first that is held, or that
-- was freed for a reader; goes on with a set that has joined a queue, and refreshes its place.
-- KEYS as in each_name.lua
-- ARGV[1] holder id, ARGV[2] ttl in ms
-- ARGV[3] index of the lock in whose queue the set waits, or that it was granted there; 0 at first
-- ARGV[4] number of locks below that one that the set has kept
-- ARGV[5] 1 to keep the locks below the one whose queue the set joins, ARGV[6] the mark of its
-- place, ARGV[7] inbox, ARGV[8..] wake channels in the order of the locks
-- Granted: {1, token of each lock}.
-- Queued: {0, value of the holder, ms until it ends or -1, index of the lock, number of locks kept
-- below it}. At a lock that was freed for a reader: no value, and -2 ms.
-- If the set has lost a lock or its place since its last call: 0. It then has no lock and no place.
-- Errors: BADFENCE n if the n-th fence holds no integer below 2^53, WRONGTYPE n if the n-th lock is
-- no string. After any error the set has no lock and no place.
local id, at, kept = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local keeps = ARGV[5] == '1'
-- A kept lock lasts as long as a place.
local provisional = math.min(3000, tonumber(ARGV[2]))

-- Turns to the n-th name, and returns the value of its lock; nil and an error if it has none.
local function read(n)
  turn_to(n)
  local value = redis.pcall('GET', all[n])
  if type(value) ~= 'table' then
    settle()
    return value
  end
  if not string.find(value.err, 'WRONGTYPE', 1, true) then return nil, value end
  return nil, redis.error_reply('WRONGTYPE ' .. n .. ' the lock is no string')
end

-- Grants the n-th lock to the first in its queue, or frees it, if the set has it.
local function pass_on(n)
  local _, bad = read(n)
  if bad or not take_out(id) then return end
  -- A damaged queue must not keep the lock from being released.
  pcall(grant)
  left(ARGV[7 + n], id)
end

-- Ends all that the set has. Always a write: a server that has become a replica then replies
-- READONLY.
local function give_up(answer)
  turn_to(math.max(at, 1))
  if redis.call('HDEL', KEYS[4], id) == 1 then redis.call('LREM', KEYS[3], '1', id) end
  for n = 1, count do pass_on(n) end
  return answer
end

local function queued(n, others)
  local value, bad = read(n)
  if bad then return give_up(bad) end
  -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
  return {0, value and string.sub(value, 1, 1088), soonest(), n, others}
end

-- Renews the place in the queue of lock `at`. Returns false if there is none.
local function refresh()
  local place = redis.call('LINDEX', KEYS[3], '0') and redis.call('HGET', KEYS[4], id)
  local before, mark = string.match(place or '', '^%d+ (%d+ %S+ %d+) (%a) ')
  if not before then return false end
  if mark ~= 'l' and mark ~= 'a' then
    -- As in queue_refresh.lua.
    local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[7])
    local listens = ARGV[7] ~= '' and (listeners.err or listeners[2] > 0)
    mark = listens and 'l' or mark == 'p' and 'r' or mark
  end
  -- First, like the deletion in queue.lua: a server whose memory is full allows it.
  redis.call('PEXPIRE', KEYS[3], '6000')
  redis.call('PEXPIRE', KEYS[4], '6000')
  redis.call('HSET', KEYS[4], id, table.concat({now, before, mark, ARGV[7]}, ' '))
  return true
end

-- Takes a place at the end of the queue, unless the set has one: this script may have run twice.
local function join()
  if not redis.call('HGET', KEYS[4], id) and redis.call('RPUSH', KEYS[3], id) == 1 then
    -- As in queue_enter.lua.
    redis.call('DEL', KEYS[4])
  end
  -- One token, as a Mutex wants it: its releases may leave the lock open.
  local place = {now, provisional, '+1', now, ARGV[6], ARGV[7]}
  redis.call('HSET', KEYS[4], id, table.concat(place, ' '))
  redis.call('PEXPIRE', KEYS[3], '6000')
  redis.call('PEXPIRE', KEYS[4], '6000')
end

-- Returns whether the first place is a reader's that lives and that a grant reaches. Other scripts
-- cannot grant to it, so a release frees the lock: a set in a loop could acquire it again and again
-- before the reader does. They pass over a reader that a grant does not reach, and mark it so.
local function is_reader_next()
  local first = redis.pcall('LINDEX', KEYS[3], '0')
  local place = type(first) == 'string' and redis.pcall('HGET', KEYS[4], first)
  if type(place) ~= 'string' then return false end
  local seen, lasts, want, mark = string.match(place, '^(%d+) (%d+) (%S+) %d+ (%a)')
  return want == 'r' and mark ~= 'p' and seen + lasts > now
end

read_clock()
for n = 1, kept do
  if read(n) ~= id then return give_up(0) end
end
if at > 0 then
  local value, bad = read(at)
  if bad then return give_up(bad) end
  if value ~= id then
    if not refresh() then return give_up(0) end
    refreshed = {[id] = true}
    bad = grant()
    refreshed = nil
    if bad then return give_up(bad) end
    if holder ~= id then
      for n = 1, kept do
        if keeps then redis.call('PEXPIRE', all[n], provisional) else pass_on(n) end
      end
      return queued(at, keeps and kept or 0)
    end
  end
end

local refused
for n = 1, count do
  local value, bad = read(n)
  if bad then return give_up(bad) end
  if value and value ~= id or not value and at == 0 and is_reader_next() then
    refused = n
    break
  end
end
if refused then
  for n = count, 1, -1 do
    if n < refused and keeps then
      local taken = redis.pcall('SET', all[n], id, 'PX', provisional)
      if taken.err then return give_up(taken) end
    else
      pass_on(n)
    end
  end
  turn_to(refused)
  join()
  return queued(refused, keeps and refused - 1 or 0)
end
local reply = {1}
for n = 1, count do
  local last, bad = last_token(all[count + n], n .. ' ', 0)
  if bad then return give_up(bad) end
  reply[n + 1] = math.max(micros, (last or 0) + 1)
end
-- Fences first: a token that no client receives does no harm.
for n = 1, count do
  local kept_token = redis.pcall('SET', all[count + n], reply[n + 1], 'EX', '86400')
  if kept_token.err then return give_up(kept_token) end
end
for n = 1, count do
  local taken = redis.pcall('SET', all[n], id, 'PX', ARGV[2])
  if taken.err then return give_up(taken) end
end
return reply
