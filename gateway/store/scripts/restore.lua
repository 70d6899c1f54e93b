-- Writes a request again that Redis has lost, as its owner has it in memory. ARGV: prefix, id, owner, edge, caller,
-- content, digest, seconds since it came, model, drawn ('0', '1'), tokens, logprobs, seconds to live. Returns 'ok', or
-- 'fenced' if it is there and somebody else owns it.
local prefix, id, owner, edge, caller, content, digest = unpack(ARGV, 1, 7)
local age, model, drawn, tokens, logprobs, ttl = tonumber(ARGV[8]), unpack(ARGV, 9, 12)
ttl = tonumber(ARGV[13])
local key = prefix .. 'request:' .. id
local known = redis.call('HGET', key, 'owner')
if known then
  return known == owner and 'ok' or 'fenced'
end
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', key, 'digest', digest, 'content', content, 'caller', caller, 'owner', owner, 'edge', edge,
  'created', tostring(now - age), 'state', 'open', 'model', model, 'drawn', drawn)
redis.call('EXPIRE', key, ttl)
if tokens ~= '' then
  redis.call('SET', prefix .. 'tokens:' .. id, tokens, 'EX', ttl)
end
if logprobs ~= '' then
  redis.call('SET', prefix .. 'logprobs:' .. id, logprobs, 'EX', ttl)
end
redis.call('ZADD', prefix .. 'owned:' .. owner, now - age, id)
redis.call('SADD', prefix .. 'open:' .. caller, id)
redis.call('EXPIRE', prefix .. 'open:' .. caller, ttl)
return 'ok'
