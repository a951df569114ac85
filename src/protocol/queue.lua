-- The functions that the scripts of a queue share; prepended to each of them, behind those of an
-- admission, which know the holders and whether a waiter fits. They are few: Redis makes all of
-- them anew for every call of a script.
-- KEYS[3] queue: a list of the waiters' holder ids, first in line first
-- KEYS[4] places: a hash from holder id to "seen provisional want entered mark inbox"
--   seen: when the place was last refreshed, in ms
--   provisional: how long the place lasts without a refresh, and a grant to it, both from `seen`
--   want: what the waiter wants, for the admission
--   entered: when the place entered the queue, in ms
--   mark: when a grant to the place reaches its client
--     l: while the client listens to its inbox
--     n: the client is new and about to listen; its first refresh makes it l
--     p: as l; the place was passed over, and its next refresh makes it r
--     r: its next refresh learns of the grant, whether or not the client listens
--     a: as r; the client may listen at another node, where this server cannot see it
--   inbox: the channel on which the client receives grants, empty for none
-- Earlier versions of leasehold write "seen provisional inbox". Such a place counts as marked `a`,
-- and its client gets the message of its version. Their scripts read the rest of a newer place as
-- an inbox to which nobody listens: its client learns of their grants from its next refresh.

-- The waiters whose client reads the reply to this script, and the first token of those that it has
-- granted what they want. Only a refresh has them.
local asking, granted

-- Returns how long a place still lasts, in ms, and its text; nil if its refresh is overdue.
local function living(id)
  local place = redis.call('HGET', KEYS[4], id)
  local seen, provisional = string.match(place or '', '^(%d+) (%d+) ')
  local left = seen and seen + provisional - now or 0
  if left > 0 then return left, place end
end

-- Removes the place at index `n` of the queue. A deletion first: a server whose memory is full
-- allows it, and then the other writes too.
local function remove(id, n)
  if n == 0 then
    redis.call('LPOP', KEYS[3])
  else
    redis.call('LREM', KEYS[3], 1, id)
  end
  redis.call('HDEL', KEYS[4], id)
end

-- Returns whether a grant to the waiter reaches its client.
local function reaches(id, mark, inbox)
  if mark ~= 'l' and mark ~= 'p' or asking and asking[id] then return true end
  if inbox == '' then return false end
  -- Not the reply of PUBLISH: a client whose subscription has stayed at a replica would receive a
  -- grant that nobody here has received, and hold the lock beside the next waiter.
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', inbox)
  -- A user without this permission grants to the first living place.
  return listeners.err or listeners[2] > 0
end

-- Grants the waiters in line what they want, as long as they fit, and tells their clients. A waiter
-- that a grant does not reach keeps its position and is marked as passed over. Returns an error if
-- a grant failed.
local function grant()
  local n, count = 0, 0
  -- At most 100 of each: the server does nothing else meanwhile. The first renewals go on.
  while fits() and n < 100 and count < 100 do
    local id = redis.call('LINDEX', KEYS[3], n)
    if not id then return nil end
    local left, place = living(id)
    if not left then
      remove(id, n)
    else
      local want, mark, inbox = string.match(place, '^%d+ %d+ (%S+) %d+ (%a) (.*)$')
      local message = 'grant %.0f ' .. (want or '') .. ' %s'
      if not want then
        want, mark, inbox = '1', 'a', string.match(place, '^%d+ %d+ (.*)$')
        message = 'grant %.0f %s'
      end
      if reaches(id, mark, inbox) then
        if not fits(want) then return nil end
        remove(id, n)
        local token, bad = draw(want)
        bad = bad or hold(id, want, left, token)
        -- The waiter has left the queue: it joins again and receives this error.
        if bad then return bad end
        if granted then granted[id] = token end
        if inbox ~= '' then
          -- A user without the PUBLISH permission can still grant: the next refresh reports it.
          redis.pcall('PUBLISH', inbox, string.format(message, token, id))
        end
        count = count + 1
      else
        if mark == 'l' then
          -- A deletion first, as in `remove`.
          redis.call('HDEL', KEYS[4], id)
          redis.call('HSET', KEYS[4], id, (string.gsub(place, '^(%d+ %d+ %S+ %d+) l', '%1 p')))
        end
        n = n + 1
      end
    end
  end
end

