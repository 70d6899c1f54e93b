-- Ends unowned requests after their deadline, or after too many seconds without an owner; at most 512 of each per call.
-- ARGV: prefix, maximum seconds without an owner, end to write, end at a deadline, seconds that finished requests stay.
-- Returns the number of ended requests.
local prefix, patience, late, retention = ARGV[1], tonumber(ARGV[2]), ARGV[4], tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local ended = 0
heal_unowned(prefix)
local function finish(id, ending)
  local key = prefix .. 'request:' .. id
  local state, caller = unpack(redis.call('HMGET', key, 'state', 'caller'))
  remove_unowned(prefix, id)
  if state == 'open' then
    ended = ended + 1
    redis.call('HSET', key, 'state', 'finished', 'end', ending)
    redis.call('SREM', prefix .. 'open:' .. caller, id)
    for _, kind in ipairs({'request:', 'tokens:', 'logprobs:'}) do
      redis.call('EXPIRE', prefix .. kind .. id, retention)
    end
  end
end
local function up_to(key, score)
  return redis.call('ZRANGEBYSCORE', prefix .. key, '-inf', string.format('%.6f', score), 'LIMIT', 0, 512)
end
for _, id in ipairs(up_to('deadlines', now)) do
  finish(id, late)
end
for _, id in ipairs(up_to('unowned', now - patience)) do
  finish(id, ARGV[3])
end
return ended
