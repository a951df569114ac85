-- Shared by scripts that release or renew; prepended to each of them.
-- Writes a lock without changing it: a server that has become a replica then replies READONLY, not
-- "not yours" or "renewed".
local function rewrite(lock)
  local left = redis.call('PTTL', lock)
  local holder = left < 0 and redis.call('GET', lock)
  if left >= 0 then
    -- At least 1 ms: PEXPIRE with 0 deletes the key. As text, as in draw_free.lua.
    redis.call('PEXPIRE', lock, string.format('%.0f', math.max(left, 1)))
  elseif holder then
    redis.call('SET', lock, holder)
  else
    redis.call('DEL', lock)
  end
end

-- Releases each of several locks that one of the given holder ids holds, and wakes its waiters.
-- KEYS the locks
-- ARGV their wake channels in the same order, then the holder ids
-- Replies with a list: the value of the first lock whose holder is none of the ids, or 0 if there
-- is none; then the index, from 1, of each id that held all of the locks.
-- Errors: WRONGTYPE n if the n-th lock is no string. The other locks of the ids are released.
local count = #KEYS
local asked, released = {}, {}
for n = count + 1, #ARGV do asked[ARGV[n]] = true end
local other, any, unreadable = 0, false, nil
for n = 1, count do
  local holder = redis.pcall('GET', KEYS[n])
  if type(holder) == 'table' then
    -- Releases the other locks before it returns this error.
    if string.find(holder.err, 'WRONGTYPE', 1, true) then
      holder = redis.error_reply('WRONGTYPE ' .. n .. ' the lock is no string')
    end
    unreadable = unreadable or holder
  elseif holder and asked[holder] then
    redis.call('DEL', KEYS[n])
    -- A user without the PUBLISH permission can still release.
    redis.pcall('PUBLISH', ARGV[n], holder)
    released[holder] = (released[holder] or 0) + 1
    any = true
  elseif holder and other == 0 then
    -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
    other = string.sub(holder, 1, 1088)
  end
end
if unreadable then return unreadable end
if not any then rewrite(KEYS[1]) end
local reply = {other}
for n = count + 1, #ARGV do
  if released[ARGV[n]] == count then reply[#reply + 1] = n - count end
end
return reply
