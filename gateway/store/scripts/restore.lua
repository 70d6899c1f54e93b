-- Writes a request that Redis has lost again, from its owner's memory. ARGV: prefix, id, owner, edge, caller, content,
-- idempotency key, seconds since arrival, model, drawn ('0', '1'), tokens, logprobs, seconds to live, adoption,
-- seconds from arrival to the deadline ('' for none).
-- Returns 'ok', even if Redis has these tokens, or 'fenced' if Redis has the request by another or later adoption.
local prefix, id, owner, edge, caller, content, idempotency_key = unpack(ARGV, 1, 7)
local age, model, drawn, tokens, logprobs, ttl = tonumber(ARGV[8]), unpack(ARGV, 9, 12)
ttl = tonumber(ARGV[13])
local adoption = tonumber(ARGV[14])
local key = prefix .. 'request:' .. id
local known, number = unpack(redis.call('HMGET', key, 'owner', 'adoption'))
if known then
  if known == owner and tonumber(number) == adoption then
    if redis.call('STRLEN', prefix .. 'tokens:' .. id) >= #tokens then
      return 'ok'
    end
  elseif tonumber(number) >= adoption then
    return 'fenced'
  end
  redis.call('ZREM', prefix .. 'owned:' .. known, id)
  remove_unowned(prefix, id)
  redis.call('DEL', prefix .. 'tokens:' .. id, prefix .. 'logprobs:' .. id)
end
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', key, 'idempotency_key', idempotency_key,
  'content', content, 'caller', caller, 'owner', owner, 'reader:' .. edge, '1',
  'created', tostring(now - age), 'state', 'open', 'model', model, 'drawn', drawn,
  'adoption', adoption)
if ARGV[15] ~= '' then
  redis.call('HSET', key, 'deadline', string.format('%.3f', now - age + ARGV[15]))
end
redis.call('EXPIRE', key, ttl)
if tokens ~= '' then
  redis.call('SET', prefix .. 'tokens:' .. id, tokens, 'EX', ttl)
end
if logprobs ~= '' then
  redis.call('SET', prefix .. 'logprobs:' .. id, logprobs, 'EX', ttl)
end
redis.call('SADD', prefix .. 'gateways', owner)
redis.call('ZADD', prefix .. 'owned:' .. owner, now - age, id)
redis.call('SADD', prefix .. 'open:' .. caller, id)
redis.call('EXPIRE', prefix .. 'open:' .. caller, ttl)
return 'ok'
