// A pod's name that opens what is known of it; a hidden name opens nothing.

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
