-- Ends requests that have had no owner for too long. ARGV: prefix, seconds, the end to write, seconds that finished
-- requests stay. Returns how many.
local prefix, patience, ending, retention = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local now = tonumber(redis.call('TIME')[1])
local ids = redis.call('ZRANGEBYSCORE', prefix .. 'unowned', '-inf', now - patience)
for _, id in ipairs(ids) do
  local key = prefix .. 'request:' .. id
  redis.call('ZREM', prefix .. 'unowned', id)
  if redis.call('HGET', key, 'state') == 'open' then
    redis.call('HSET', key, 'state', 'finished', 'end', ending)
    redis.call('SREM', prefix .. 'open:' .. redis.call('HGET', key, 'caller'), id)
    for _, kind in ipairs({'request:', 'tokens:', 'logprobs:'}) do
      redis.call('EXPIRE', prefix .. kind .. id, retention)
    end
  end
end
return #ids
