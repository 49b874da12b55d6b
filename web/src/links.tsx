// Names of pods and nodes that open what is known of them; a hidden name opens nothing.

import { isHidden, podName } from "./words";

interface Pod {
  namespace: string;
  pod: string;
}

/** Identity of a pod in the page's address; cards have `NODE/UUID`. */
export function podId({ namespace, pod }: Pod): string {
  return `pod/${namespace}/${pod}`;
}

/** The pod of such an identity. */
export function podOf(id: string): Pod | undefined {
  const [kind, namespace, pod, more] = id.split("/");
  return kind === "pod" && namespace && pod && more === undefined ? { namespace, pod } : undefined;
}

export function PodLink({ pod, onOpen }: { pod: Pod; onOpen: (id: string) => void }) {
  if (isHidden(pod.pod)) return <b class="hidden">{podName(pod)}</b>;
  return (
    <button type="button" class="link strong" onClick={() => onOpen(podId(pod))}>
      {podName(pod)}
    </button>
  );
}

/** Identity of a node in the page's address. */
export function nodeId(name: string): string {
  return `node:${name}`;
}

/** The node of such an identity. */
export function nodeOf(id: string): string | undefined {
  return id.startsWith("node:") ? id.slice("node:".length) : undefined;
}

export function NodeLink({ node, onOpen }: { node: string; onOpen: (id: string) => void }) {
  if (isHidden(node)) return <b class="hidden">{node}</b>;
  return (
    <button type="button" class="link strong" onClick={() => onOpen(nodeId(node))}>
      {node}
    </button>
  );
}
