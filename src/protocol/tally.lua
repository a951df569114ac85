-- Adds a client's counts to the shared statistics. A call that is repeated within an hour adds
-- nothing.
-- KEYS[1] hash of the statistics, KEYS[2] number of the client's last addition
-- ARGV[1] number of this addition, which rises
-- ARGV[2] fields and counts, as "attempts 3 released 2"
-- Added: 1. Added before, by a try whose reply was lost: 0.
-- Errors: an error of HINCRBY if it failed for every field. After an error nothing was added.
local last = redis.call('GET', KEYS[2]) or '0'
if tonumber(last) >= tonumber(ARGV[1]) then
  return 0
end
-- Before the counts: without the permission for SET, each try would add the counts again.
redis.call('SET', KEYS[2], ARGV[1], 'EX', 3600)
local added, refused = 0, nil
for field, count in string.gmatch(ARGV[2], '(%S+) (%d+)') do
  local answer = redis.pcall('HINCRBY', KEYS[1], field, count)
  if type(answer) == 'table' then
    refused = answer
  else
    added = added + 1
  end
end
-- A field that holds no integer must not keep the others from being added: only its count is lost.
if added == 0 then
  redis.call('SET', KEYS[2], last, 'EX', 3600)
  return refused
end
return 1
