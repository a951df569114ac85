-- Refreshes the places of a client's waiters, and grants to those in line who fit.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places, KEYS[5] readers of a lock
-- ARGV[1] the client's inbox, ARGV[2..] holder ids
-- Replies with a list of one item for each holder id: 0 if it waits, its fencing token if it was
-- granted what it wants, -1 if neither: it then gets no grant later. The next item is the number of
-- ms until the lock expires or the first permits end: -1 without an expiry, -2 if nobody holds.
-- Then the last number of a refusal by queue_enter.lua, and the value of the lock key, if any.
-- Errors: BADFENCE if `draw` of the admission fails with it. Grants made before an error stand:
-- the next refresh replies with them.
read_clock()
settle(true)
-- A queue in which all waiters have died ends after twice the longest provisional time. One of its
-- keys is enough in each refresh, in turns: a place is refreshed in every second. First, because a
-- server whose memory is full allows it, and then the other writes, too.
local turn = math.floor(now / 1000) % 2
if redis.call('PEXPIRE', KEYS[3 + turn], '6000') == 0 then
  -- Places without a queue have no order.
  redis.call('DEL', KEYS[4])
end
refreshed, granted = {}, {}
-- Fields and values of the places; whether a place was refreshed late.
local places, is_late = {}, false
-- Whether a client listens to the inbox now, whether the clock was set back since a refresh, and
-- whether any of the waiters fits. The others' own refreshes find out whether they fit.
local listens, is_set_back, any_fits
local reply = {}
for n = 2, #ARGV do
  local id = ARGV[n]
  local place = redis.call('HGET', KEYS[4], id)
  local seen, lasts, wanted, entered, mark =
    string.match(place or '', '^(%d+) (%d+) (%S+) (%d+) (%a) ')
  if seen then
    is_set_back = is_set_back or tonumber(seen) > now
    is_late = is_late or now - seen > 1000
    -- Only the place of a mutex can want something else later.
    if want and string.sub(wanted, 1, 1) == '+' then wanted = want end
    any_fits = any_fits or fits(wanted)
    if mark ~= 'l' and mark ~= 'a' then
      if listens == nil then
        local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
        -- A user without the permission for PUBSUB counts as listening.
        listens = ARGV[1] ~= '' and (listeners.err ~= nil or listeners[2] > 0)
      end
      mark = listens and 'l' or mark == 'p' and 'r' or mark
    end
    places[#places + 1] = id
    places[#places + 1] = table.concat({now, lasts, wanted, entered, mark, ARGV[1]}, ' ')
    refreshed[id] = true
  end
  reply[n - 1] = seen and 0 or -1
end
-- Lua can pass some thousand arguments.
for n = 1, #places, 1000 do
  redis.call('HSET', KEYS[4], unpack(places, n, math.min(n + 999, #places)))
end
if is_late then redis.call('PEXPIRE', KEYS[4 - turn], '6000') end
if is_set_back then set_back(0) end
local bad
if any_fits or is_set_back then
  settle()
  bad = grant()
  if bad then return bad end
end
for n = 2, #ARGV do
  local token = granted[ARGV[n]]
  if reply[n - 1] == -1 then
    -- Granted before: the message was lost or is on its way.
    token, bad = held(ARGV[n])
    if bad then return bad end
  end
  reply[n - 1] = token or reply[n - 1]
end
reply[#ARGV], reply[#ARGV + 1] = soonest()
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
if holder then reply[#ARGV + 2] = string.sub(holder, 1, 1088) end
return reply
