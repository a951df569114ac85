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

