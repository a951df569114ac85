-- Acquires all locks of a set, or joins the queue of the first that is held. A later call refreshes
-- the place of the set in that queue. Once that lock is granted to the set, the call acquires all
-- locks, or joins the queue of the first that someone else holds.
-- KEYS as in each_name.lua
-- ARGV[1] holder id, ARGV[2] ttl in ms
-- ARGV[3] index of the lock in whose queue the set had its place after the last call; 0 at first
-- ARGV[4] number of locks below that one that the set has kept
-- ARGV[5] 1 to keep the locks below the one in whose queue the set waits after this call
-- ARGV[6] the mark of a new place, ARGV[7] inbox, ARGV[8..] wake channels in the order of the locks
-- Granted: {1, token of each lock}.
-- Queued: {0, value of the lock key, its ttl in ms or -1, ms since its last token was drawn, index
-- of the lock, number of locks kept below it}. The ms since then are negative if not known.
-- If the set has lost a lock or its place since its last call: 0. It then has no lock and no place.
-- Errors: BADFENCE n if the n-th fence holds no integer below 2^53 - 1, or a grant cannot use it;
-- WRONGTYPE n if the n-th lock is no string. After these the set has no lock and no place. The
-- error of a damaged queue can leave it some of them: the client then sends queue_release_all.
local id, at, kept = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local keeps = ARGV[5] == '1'
-- How long a kept lock lasts without a refresh, in ms: as long as a place.
local provisional = math.min(3000, tonumber(ARGV[2]))

-- As read_lock, and notes the holder of the lock. Readers whose lease has ended do not count.
local function read(n)
  local value, bad = read_lock(n)
  holder = value
  if value then settle() end
  return holder, bad
end

-- Releases the n-th lock if the set holds it: grants it to the next in its queue, or frees it.
local function pass_on(n)
  local _, bad = read(n)
  if bad or not take_out(id) then return end
  -- A damaged queue must not keep the lock from being released.
  pcall(grant)
  left(ARGV[7 + n], id)
end

-- Removes the set's place and releases all its locks. Always writes, so that a server that has
-- become a replica replies READONLY.
local function give_up(answer)
  turn_to(math.max(at, 1))
  if redis.call('HDEL', KEYS[4], id) == 1 then redis.call('LREM', KEYS[3], '1', id) end
  for n = 1, count do pass_on(n) end
  return answer
end

-- Returns the reply to a set that waits in the queue of the n-th lock and keeps `others` locks.
local function queued(n, others)
  local value, bad = read(n)
  if bad then return give_up(bad) end
  -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
  value = value and string.sub(value, 1, 1088)
  drawn = last_token(KEYS[2], '', 0)
  local left, age = soonest()
  return {0, value, left, age, n, others}
end

-- Renews the place in the queue of lock `at`. Returns false if there is none.
local function refresh()
  local place = redis.call('LINDEX', KEYS[3], '0') and redis.call('HGET', KEYS[4], id)
  local seen, before, mark = string.match(place or '', '^(%d+) (%d+ %S+ %d+) (%a) ')
  if not before then return false end
  if tonumber(seen) > now then set_back(0) end
  if mark ~= 'l' and mark ~= 'a' then
    -- The marks are listed in queue.lua. A user who may not count listeners counts as listening, as
    -- in a grant.
    local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[7])
    local listens = ARGV[7] ~= '' and (listeners.err or listeners[2] > 0)
    mark = listens and 'l' or mark == 'p' and 'r' or mark
  end
  -- PEXPIRE first, like the deletion in queue.lua: a server whose memory is full allows it, and
  -- then the other writes too.
  redis.call('PEXPIRE', KEYS[3], '6000')
  redis.call('PEXPIRE', KEYS[4], '6000')
  redis.call('HSET', KEYS[4], id, table.concat({now, before, mark, ARGV[7]}, ' '))
  return true
end

-- Joins the end of the queue, or replaces the set's place there: if the network has run the call
-- twice, the first run has joined.
local function join()
  if not redis.call('HGET', KEYS[4], id) and redis.call('RPUSH', KEYS[3], id) == 1 then
    -- The queue was empty, or someone deleted it: places without a queue would never be granted.
    redis.call('DEL', KEYS[4])
  end
  -- At once: if Redis refuses a later command, the queue must end, too.
  redis.call('PEXPIRE', KEYS[3], '6000')
  -- One token. The plus sign, as of a Mutex, lets a release leave the lock open despite this place.
  local place = {now, provisional, '+1', now, ARGV[6], ARGV[7]}
  redis.call('HSET', KEYS[4], id, table.concat(place, ' '))
  redis.call('PEXPIRE', KEYS[4], '6000')
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
    if bad then
      -- A grant does not say of which name the fence is.
      return give_up({err = string.gsub(bad.err, 'BADFENCE ', 'BADFENCE ' .. at .. ' ', 1)})
    end
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
  if value and value ~= id then
    refused = n
    break
  end
end
if refused then
  for n = count, 1, -1 do
    if n < refused and keeps then
      -- The last token says since when the lock is held. A damaged fence stays as it is.
      local token = read(n) ~= id and draw(1)
      if token then store(KEYS[2], token, drawn, micros) end
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
local reply, last_tokens = {1}, {}
for n = 1, count do
  local last, bad = last_token(all[count + n], n .. ' ', 0)
  if bad then return give_up(bad) end
  last_tokens[n], reply[n + 1] = last, math.max(micros, (last or 0) + 1)
end
-- The fences are set first: a token that no client receives does no harm.
for n = 1, count do
  local bad = store(all[count + n], reply[n + 1], last_tokens[n], micros)
  if bad then return give_up(bad) end
end
for n = 1, count do
  local taken = redis.pcall('SET', all[n], id, 'PX', ARGV[2])
  if taken.err then return give_up(taken) end
end
return reply
