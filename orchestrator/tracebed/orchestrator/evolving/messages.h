/* Routes and transfers of messages. Part of evolving.c. */

static int64_t sender_of(const struct machine *m, int64_t message) {
    return m->in->sender[m->first_message + message] - m->first_process;
}

static int64_t receiver_of(const struct machine *m, int64_t message) {
    return m->in->receiver[m->first_message + message] - m->first_process;
}

/* Store the links from a node to another, as `Machine.route`, and return their number. */
static int32_t find_route(const struct machine *m, int64_t node, int64_t other, int32_t *links) {
    const int64_t sides[3] = {m->in->side0, m->in->side1, m->in->side2};
    int64_t at[3], end[3], stride[3], axis;
    int32_t count = 0;
    for (axis = m->in->dimensions - 1; axis >= 0; axis--) {
        stride[axis] = axis == m->in->dimensions - 1 ? 1 : stride[axis + 1] * sides[axis + 1];
        at[axis] = node / stride[axis] % sides[axis];
        end[axis] = other / stride[axis] % sides[axis];
    }
    for (axis = 0; axis < m->in->dimensions; axis++) {
        int64_t ahead = (end[axis] - at[axis] + sides[axis]) % sides[axis];
        int upwards = m->in->torus ? 2 * ahead <= sides[axis] : end[axis] > at[axis];
        while (at[axis] != end[axis]) {
            int64_t next = (at[axis] + (upwards ? 1 : -1) + sides[axis]) % sides[axis];
            assert(count < m->longest);
            links[count++] = (int32_t)((node * m->in->dimensions + axis) * 2 + upwards);
            node += (next - at[axis]) * stride[axis];
            at[axis] = next;
        }
    }
    return count;
}

static void arrive(struct machine *m, int64_t message) {
    m->message[message] |= ARRIVED;
    if (m->in->synchronous) make_ready(m, sender_of(m, message));
    if (m->message[message] & AWAITED) make_ready(m, receiver_of(m, message));
}

static void flow(struct machine *m, int64_t message) {
    int64_t from = m->process[sender_of(m, message)].node, to = m->process[receiver_of(m, message)].node;
    double size = m->in->size[m->first_message + message];
    if (from == to || size <= 0.0) {
        arrive(m, message);
        return;
    }
    int32_t number = new_activity(m, FLOWING, message, size);
    struct activity *a = &m->activity[number];
    m->transfer[message] = number;
    a->hops = find_route(m, from, to, m->route + number * m->longest);
    for (int32_t hop = 0; hop < a->hops; hop++) {
        int32_t id = m->route[number * m->longest + hop];
        struct link *link = &m->link[id];
        if (link->count == link->room) {
            int32_t room = link->room ? 2 * link->room : 8;
            link->on = resized(m, link->on, room, sizeof *link->on);
            link->room = room;
        }
        m->where[number * m->longest + hop] = link->count;
        link->on[link->count++] = (struct on_link){number, hop};
        touch_link(m, id);
    }
}

static void begin_transfer(struct machine *m, int64_t message) {
    uint8_t state = m->message[message];
    int64_t from, to;
    if (state & TRAVELS || !(state & SENT) || m->process[receiver_of(m, message)].node < 0) return;
    if (m->in->synchronous && !(state & AWAITED)) return;
    m->message[message] |= TRAVELS;
    from = m->process[sender_of(m, message)].node;
    to = m->process[receiver_of(m, message)].node;
    if (m->in->latency > 0.0 && from != to) {
        int32_t number = new_activity(m, DELAYED, message, 0.0);
        int32_t hops = find_route(m, from, to, m->route + number * m->longest);
        m->activity[number].amount = m->in->latency * hops;
        m->transfer[message] = number;
        run(m, number, 1.0);
    } else {
        flow(m, message);
    }
}
