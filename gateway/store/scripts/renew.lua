-- Renews a gateway's lease. ARGV: prefix, gateway, lease in milliseconds, the gateway's report, an epoch to set if
-- Redis has none, then pairs of a verifier's instance and the fence of its lease.
-- Returns {epoch, {reports of live gateways}, {requests to cancel}, {instances whose lease is lost}}.
local prefix, me, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
redis.call('SET', prefix .. 'epoch', ARGV[5], 'NX')
redis.call('SET', prefix .. 'gateway:' .. me, ARGV[4], 'PX', lease)
redis.call('SADD', prefix .. 'gateways', me)
local alive = {}
for _, id in ipairs(redis.call('SMEMBERS', prefix .. 'gateways')) do
  local said = redis.call('GET', prefix .. 'gateway:' .. id)
  if said then
    alive[#alive + 1] = said
  elseif redis.call('EXISTS', prefix .. 'owned:' .. id) == 0 then
    redis.call('SREM', prefix .. 'gateways', id)
  end
end
-- A cancellation stays until its request has ended or has another owner, as this answer may be lost.
local cancels = {}
for _, id in ipairs(redis.call('SMEMBERS', prefix .. 'cancels:' .. me)) do
  local owner, state = unpack(redis.call('HMGET', prefix .. 'request:' .. id, 'owner', 'state'))
  if owner == me and state == 'open' then
    cancels[#cancels + 1] = id
  else
    redis.call('SREM', prefix .. 'cancels:' .. me, id)
  end
end
local lost = {}
for at = 6, #ARGV, 2 do
  local key = prefix .. 'verifier:' .. ARGV[at]
  if redis.call('GET', key) == me .. ' ' .. ARGV[at + 1] then
    redis.call('PEXPIRE', key, lease)
  else
    lost[#lost + 1] = ARGV[at]
  end
end
return {redis.call('GET', prefix .. 'epoch'), alive, cancels, lost}
