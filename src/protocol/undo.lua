-- Releases the locks where one of several holder ids holds them, and tells the waiters.
-- KEYS: the locks; ARGV: their wake channels in the same order, then the holder ids
-- A list: the holder's value of the first lock that is held by none of the ids, 0 where there is no such holder;
-- then, counted from 1, each id that held all of the locks until now.
local count = #KEYS
local asked, released = {}, {}
for n = count + 1, #ARGV do asked[ARGV[n]] = true end
local other, any = 0, false
for n = 1, count do
  local holder = redis.call('GET', KEYS[n])
  if holder and asked[holder] then
    redis.call('DEL', KEYS[n])
    -- A user without the right to publish still releases.
    redis.pcall('PUBLISH', ARGV[n], holder)
    released[holder] = (released[holder] or 0) + 1
    any = true
  elseif holder and other == 0 then
    -- Others may have written megabytes. No holder id of ours is longer than this.
    other = string.sub(holder, 1, 1088)
  end
end
if not any then
  -- A server that has become a replica must answer READONLY here, not "not yours": so a write that
  -- changes nothing. Zero would delete.
  local left = redis.call('PTTL', KEYS[1])
  local holder = redis.call('GET', KEYS[1])
  if left >= 0 then
    redis.call('PEXPIRE', KEYS[1], math.max(left, 1))
  elseif holder then
    redis.call('SET', KEYS[1], holder)
  else
    redis.call('DEL', KEYS[1])
  end
end
local reply = {other}
for n = count + 1, #ARGV do
  if released[ARGV[n]] == count then reply[#reply + 1] = n - count end
end
return reply
