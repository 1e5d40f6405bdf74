/* The rates of activities: shares of cores and of links. Part of evolving.c. */

static void share_node(struct machine *m, struct node *node) {
    double rate = (double)m->in->cores / node->count;
    node->dirty = 0;
    for (int32_t i = 0; i < node->count; i++) run(m, node->computing[i], rate < 1.0 ? rate : 1.0);
}

/* Share the links that are connected with `first` by messages: max-min fairly. */
static void share_links(struct machine *m, int32_t first) {
    int64_t count = 0, flows = 0;
    int32_t *component = m->component;
    double *shares = m->shares;
    if (m->link[first].seen == m->stamp || !m->link[first].count) return;
    m->link[first].seen = m->stamp;
    component[count++] = first;
    for (int64_t i = 0; i < count; i++) {
        struct link *link = &m->link[component[i]];
        link->left = m->in->bandwidth;
        link->open = link->count;
        link->place = (int32_t)i;
        shares[i] = link->left / link->open;
        for (int32_t j = 0; j < link->count; j++) {
            int32_t number = link->on[j].activity;
            struct activity *a = &m->activity[number];
            if (a->fixed == -m->stamp) continue;
            a->fixed = -m->stamp;
            flows++;
            for (int32_t hop = 0; hop < a->hops; hop++) {
                int32_t other = m->route[number * m->longest + hop];
                if (m->link[other].seen == m->stamp) continue;
                m->link[other].seen = m->stamp;
                component[count++] = other;
            }
        }
    }
    while (flows) {
        int32_t narrowest = -1;
        double rate = INFINITY;
        for (int64_t i = 0; i < count; i++) {
            if (shares[i] > rate || (shares[i] == rate && component[i] > narrowest)) continue;
            rate = shares[i];
            narrowest = component[i];
        }
        assert(narrowest >= 0 && rate > 0.0 && rate < INFINITY);
        for (int32_t j = 0; j < m->link[narrowest].count; j++) {
            int32_t number = m->link[narrowest].on[j].activity;
            struct activity *a = &m->activity[number];
            if (a->fixed == m->stamp) continue;
            a->fixed = m->stamp;
            flows--;
            run(m, number, rate);
            for (int32_t hop = 0; hop < a->hops; hop++) {
                struct link *link = &m->link[m->route[number * m->longest + hop]];
                link->left -= rate;
                if (--link->open) {
                    shares[link->place] = link->left / link->open;
                } else {  /* the last link takes its place */
                    shares[link->place] = shares[--count];
                    component[link->place] = component[count];
                    m->link[component[count]].place = link->place;
                }
            }
        }
    }
}

static void share(struct machine *m) {
    for (int64_t i = 0; i < m->dirty_nodes_count; i++) share_node(m, &m->node[m->dirty_nodes[i]]);
    m->dirty_nodes_count = 0;
    m->stamp++;
    for (int64_t i = 0; i < m->dirty_links_count; i++) {
        m->link[m->dirty_links[i]].dirty = 0;
        share_links(m, m->dirty_links[i]);
    }
    m->dirty_links_count = 0;
}
