-- Adopts unowned requests. Requests of gateways without a lease lose their owner first, at most 512 per gateway and call.
-- ARGV: prefix, gateway, maximum number, then the models that the gateway serves; requests begun with another model stay.
-- Returns a list of {id, number of the adoption}: callers take turns, each with its oldest request, so that a caller with
-- many requests does not delay the others. Adoptions of a request are numbered, and every write names the number.
-- The script reads only the requests that it adopts, and one turn more.
local prefix, me, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = redis.call('TIME')[1]
heal_unowned(prefix)
for _, id in ipairs(redis.call('SMEMBERS', prefix .. 'gateways')) do
  if redis.call('EXISTS', prefix .. 'gateway:' .. id) == 0 then
    for _, request in ipairs(redis.call('ZRANGE', prefix .. 'owned:' .. id, 0, 511)) do
      local key = prefix .. 'request:' .. request
      if redis.call('HGET', key, 'owner') == id then
        redis.call('HSET', key, 'owner', '')
        add_unowned(prefix, request, now)
      end
      redis.call('ZREM', prefix .. 'owned:' .. id, request)
    end
  end
end
ARGV[3] = ''  -- in addition to the models: requests that have not begun
local callers, known = {}, {}
for at = 3, #ARGV do
  local heads = redis.call('ZRANGE', prefix .. 'turns:' .. ARGV[at], 0, most - 1, 'WITHSCORES')
  for place = 1, #heads, 2 do
    local name, created = heads[place], tonumber(heads[place + 1])
    if not known[name] then
      known[name] = {name = name, oldest = created, lists = {}}
      callers[#callers + 1] = known[name]
    end
    known[name].oldest = math.min(known[name].oldest, created)
    table.insert(known[name].lists, {key = prefix .. 'waiting:' .. ARGV[at] .. ':' .. name, at = 0})
  end
end
table.sort(callers, function(a, b) return a.oldest < b.oldest end)
-- Returns the first unread request of a list; removes requests that have ended or have an owner.
local function peek(list)
  while not list.head do
    local found = redis.call('ZRANGE', list.key, list.at, list.at, 'WITHSCORES')
    if not found[1] then
      return nil
    end
    local state, owner = unpack(redis.call('HMGET', prefix .. 'request:' .. found[1], 'state', 'owner'))
    if state == 'open' and owner == '' then
      list.head = {id = found[1], created = tonumber(found[2])}
    else
      redis.call('ZREM', list.key, found[1])
      remove_unowned(prefix, found[1])
    end
  end
  return list.head
end
local function next_of(caller)
  local best
  for _, list in ipairs(caller.lists) do
    local head = peek(list)
    if head and (not best or head.created < best.head.created) then
      best = list
    end
  end
  if best then
    local head = best.head
    best.head, best.at = nil, best.at + 1
    return head
  end
end
local taken, more = {}, true
while more and #taken < most do
  local turn = {}
  for place = 1, math.min(most, #callers) do
    turn[#turn + 1] = next_of(callers[place])
  end
  more = #turn > 0
  table.sort(turn, function(a, b) return a.created < b.created end)
  for place = 1, math.min(#turn, most - #taken) do
    taken[#taken + 1] = turn[place]
  end
end
local adopted = {}
for at, request in ipairs(taken) do
  local key = prefix .. 'request:' .. request.id
  local since = redis.call('ZSCORE', prefix .. 'unowned', request.id)
  remove_unowned(prefix, request.id)
  redis.call('HSET', key, 'owner', me, 'since', since or now)
  local adoption = redis.call('HINCRBY', key, 'adoption', 1)
  redis.call('ZADD', prefix .. 'owned:' .. me, request.created, request.id)
  if redis.call('HGET', key, 'cancel') then  -- the previous owner ended before it cancelled the request
    redis.call('SADD', prefix .. 'cancels:' .. me, request.id)
    redis.call('EXPIRE', prefix .. 'cancels:' .. me, 3600)
  end
  adopted[at] = {request.id, adoption}
end
return adopted
