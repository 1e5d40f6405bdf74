// Runs programs of processes on a grid by SimGrid and prints the end of each process, s; read by test_evolving_simgrid.py.
// Works are in flops of hosts with SCALE flops per second, sizes in bytes, so that amounts are whole numbers.
#include <cstdio>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace s4u = simgrid::s4u;

static const double SCALE = 1e9;
struct Step { int kind, argument; double amount; };
struct Process { int node, parent; std::vector<Step> steps; double end; s4u::ActorPtr actor; };
struct Message { int sender, receiver; double size; s4u::Mailbox* box; };

static bool synchronous;
static std::vector<Process> processes;
static std::vector<Message> messages;
static std::vector<s4u::Host*> hosts;

static void start(int number);

static void run(int number) {
    static int payload = 0;
    for (const Step& step : processes[number].steps) {
        switch (step.kind) {
        case 0: s4u::this_actor::execute(step.amount * SCALE); break;
        case 1: {
            Message& message = messages[step.argument];
            auto size = static_cast<uint64_t>(message.size * SCALE);
            if (synchronous) message.box->put(&payload, size); else message.box->put_init(&payload, size)->detach();
            break;
        }
        case 2: messages[step.argument].box->get<int>(); break;
        case 3: start(step.argument); break;
        case 4: processes[step.argument].actor->join(); break;
        }
    }
    processes[number].end = s4u::Engine::get_clock();
}

static void start(int number) {
    Process& process = processes[number];
    process.actor = s4u::Actor::create("p" + std::to_string(number), hosts[process.node], [number] { run(number); });
    if (synchronous) return;
    for (Message& message : messages)  // an asynchronous message is on its way before its receiver awaits it
        if (message.receiver == number) message.box->set_receiver(process.actor);
}

int main(int argc, char** argv) {
    s4u::Engine engine(&argc, argv);
    int dimensions, torus, cores, together, process_count, message_count;
    double bandwidth, latency;
    std::cin >> dimensions;
    std::vector<int> sides(dimensions);
    for (int& side : sides) std::cin >> side;
    std::cin >> torus >> cores >> bandwidth >> latency >> together >> process_count >> message_count;
    synchronous = together;

    int nodes = 1;
    for (int side : sides) nodes *= side;
    auto coordinates = [&](int node) {
        std::vector<int> at(dimensions);
        for (int axis = dimensions - 1; axis >= 0; node /= sides[axis--]) at[axis] = node % sides[axis];
        return at;
    };
    auto number_of = [&](const std::vector<int>& at) {
        int node = 0;
        for (int axis = 0; axis < dimensions; axis++) node = node * sides[axis] + at[axis];
        return node;
    };
    auto* zone = s4u::create_full_zone("grid");
    for (int node = 0; node < nodes; node++) {
        hosts.push_back(zone->create_host("h" + std::to_string(node), SCALE)->set_core_count(cores));
        hosts.back()->seal();
    }
    std::vector<std::vector<s4u::Link*>> link(nodes, std::vector<s4u::Link*>(nodes, nullptr));
    auto between = [&](int node, int other) {
        if (!link[node][other]) {
            std::string name = std::to_string(node) + "-" + std::to_string(other);
            link[node][other] = zone->create_link(name, bandwidth * SCALE)->set_latency(latency)->seal();
        }
        return link[node][other];
    };
    for (int from = 0; from < nodes; from++)
        for (int to = 0; to < nodes; to++) {
            if (from == to) continue;
            std::vector<int> at = coordinates(from), end = coordinates(to);
            std::vector<s4u::LinkInRoute> route;
            for (int axis = 0; axis < dimensions; axis++)
                while (at[axis] != end[axis]) {
                    int node = number_of(at), side = sides[axis], up = (end[axis] - at[axis] + side) % side;
                    bool higher = torus ? up <= side - up : end[axis] > at[axis];
                    at[axis] = (at[axis] + (higher ? 1 : side - 1)) % side;
                    route.emplace_back(between(node, number_of(at)));
                }
            zone->add_route(hosts[from]->get_netpoint(), hosts[to]->get_netpoint(), nullptr, nullptr, route, false);
        }
    zone->seal();

    processes.resize(process_count);
    messages.resize(message_count);
    for (Process& process : processes) {
        size_t count;
        std::cin >> process.node >> process.parent >> count;
        process.steps.resize(count);
        for (Step& step : process.steps) std::cin >> step.kind >> step.argument >> step.amount;
    }
    for (int number = 0; number < message_count; number++) {
        Message& message = messages[number];
        std::cin >> message.sender >> message.receiver >> message.size;
        message.box = s4u::Mailbox::by_name("m" + std::to_string(number));
    }
    for (int number = 0; number < process_count; number++)
        if (processes[number].parent < 0) start(number);
    engine.run();
    for (const Process& process : processes) std::printf("%.12g\n", process.end);
}
